"""Images: labelled image sets, preprocessing and augmentation, and questions about images."""
