"""Programs that run a model, behind one seam."""
