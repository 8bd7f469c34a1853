"""Where a document goes: from its key to a vnode, from the vnode to the member that owns it.

`keyhash` gives each row's vnode, `assignment` each vnode's owner, and `slicing` takes a batch apart
by either. None of it knows of networks or files.
"""

from penstock.routing.assignment import Assignment, AssignmentTextError, assign
from penstock.routing.digests import check_key_type
from penstock.routing.keyhash import VNODES, hash_keys, vnodes_of
from penstock.routing.slicing import (
    VNODE_COLUMN,
    VNODE_FIELD,
    split_by_target,
    split_by_vnode,
    split_vnode_column,
)

__all__ = [
    "VNODES",
    "hash_keys",
    "vnodes_of",
    "check_key_type",
    "Assignment",
    "AssignmentTextError",
    "assign",
    "VNODE_COLUMN",
    "VNODE_FIELD",
    "split_by_target",
    "split_by_vnode",
    "split_vnode_column",
]
