"""How rows are laid out in tensors: packing, prefix trees, attention masks, devices."""
