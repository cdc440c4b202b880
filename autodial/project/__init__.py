"""The work of `autodial init`: turn a user's folders of images and a net into a project for `autodial train`.

`project` does it as a whole. `recipe` reads the net, `scan` finds the images and their classes, `inspection` decodes
them, and `checks` compares the domains. `split` and `schedule` compute batches and iterations, `net_template` adapts
the net, and `files` writes the project. Only plain nets, which are converted, need torch.
"""
