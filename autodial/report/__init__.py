"""What `autodial report` does: it turns run folders into one page with figures.

`run` reads what was run and logged. `evaluation` runs the trained net on images, with `data`, `images`, `features` and
`predictions`. `contents` writes the sections on one run, `comparison` those on several, whose `settings` it compares. Both
put `figures` and `comparison_figures`, drawn in the `style` of the demo's picture, into what `writer` collects, and `page`
makes the HTML.
"""
