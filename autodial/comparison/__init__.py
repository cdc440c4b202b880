"""`autodial compare`: methods of domain adaptation side by side on one pair of domains.

`edits` makes every method's net from one AutoDIAL net, and `methods` lists them. `shallow` has the methods that align
features of a trained net, and `shallow_job` runs one of them in a process. `folder` keeps a comparison's files,
`results` judges the runs, and `table` writes the table.
"""
