"""The bytes of a fetch into columns.

1. `batches` walks the record batches: header, checksum, producer, bits.
2. `compression` unpacks each batch's records.
3. `boundaries` finds where each record begins.
4. `columns` takes the fields of all records of many batches at once.
"""
