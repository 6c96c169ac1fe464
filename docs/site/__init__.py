"""What makes pages of this folder: the site's configuration, and the reference that is made from the code.

conf        Sphinx's configuration: navigation, theme
declared    what stands below a declaration in the code: its meaning
options     docs/reference/options.md
metrics     docs/reference/metrics.md
objects     docs/reference/objects.md
troubles    docs/reference/errors.md
"""
