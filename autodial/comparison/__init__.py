"""`autodial compare`: methods of domain adaptation side by side on one pair of domains.

`edits` makes every method's net from one AutoDIAL net, and `methods` lists them. `shallow` has the methods that align
features of a trained net. `folder` keeps a comparison's files and results, `jobs` runs a cell of the table in a
process, and `table` puts the results into a table.
"""
