"""The experiments, one file each, named as `headrace lab run` names them."""
