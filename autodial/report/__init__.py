"""What `autodial report` does: it turns run folders into one page with figures.

`run` reads what was run and logged. `evaluation` runs the trained net on images, with `data`, `images`, `features` and
`predictions`. `contents` writes the sections on one run. `comparison` writes those on several runs, whose `settings` it
compares. Both use `figures` and `comparison_figures`, which draw in the `style` of the demo's picture, and a `writer`,
which collects what `page` turns into HTML.
"""
