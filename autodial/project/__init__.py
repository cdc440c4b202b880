"""The work of `autodial init`: turn a user's folders of images and a net into a project for `autodial train`.

`scan` finds the images and their classes, `inspection` decodes them, and `checks` compares the domains. `split` and
`schedule` compute batches and iterations, `net_template` adapts the net, and `files` writes the project. No module
needs torch.
"""
