"""What `autodial init` does: from a user's folders of images, and a net, to the files that `autodial train` takes.

`scan` finds the images and their classes, `look` decodes them, `checks` compares the domains; `split` and `schedule`
work out batches and iterations, `net_template` fills in the net, and `files` writes it all. No torch is needed.
"""
