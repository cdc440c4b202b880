"""Image lists, decoding and Caffe's image transforms, on numpy and OpenCV alone."""
