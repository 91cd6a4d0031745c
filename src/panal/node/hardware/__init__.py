"""What the machine says about itself and its owner."""
