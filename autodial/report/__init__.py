"""What `autodial report` does: from a run's folder to one page with its figures.

`run` reads what was run and logged. `evaluation` runs the trained net on images, with `data`, `features` and
`predictions`. `contents` writes the sections, with what `figures` draws in the `style` that the demo's picture has too,
and `page` is their HTML.
"""
