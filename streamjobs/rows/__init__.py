"""The one form of records between operators: rows of a declared schema, checked and converted alike in every runtime.

Schemas as DDL, rows in and out of Arrow, the class of rows. No Spark: where its `Row` is to be the base of the rows,
the caller passes it in.
"""
