"""Speaks to the brokers of a cluster, over blocking sockets.

`connection` carries one request to one broker and its answer back; `authentication` and `tls` open
it; `cluster` knows who leads what, and asks again within the caller's deadline; `offsets`,
`fetching`, `transactions` and `configs` are what can be asked.
"""
