"""What `autodial report` does: it turns run folders into one page with figures.

`run` reads what was run and logged. `evaluation` runs the trained net on images, with `data`, `features` and
`predictions`. `contents` writes the sections on one run. `figures` draws, in the `style` of the demo's picture. `page`
makes the HTML.
"""
