"""hami_kubeletplugin.daemon."""
