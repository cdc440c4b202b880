"""What code that loads no torch must know of Caffe's layer types.

The classes in autodial.layers state the same facts; a test compares them.
"""

READS_SCORES = frozenset({
    "Accuracy", "EntropyLoss", "HingeLoss", "InfogainLoss", "MultinomialLogisticLoss", "Softmax", "SoftmaxWithLoss",
})  # fmt: skip
"""Types whose first bottom holds scores or probabilities of classes (Layer.reads_scores)."""

PIXELWISE = frozenset(
    ("AbsVal", "BatchNorm", "Bias", "BN", "BNLL", "Dial", "Dropout", "ELU", "Eltwise", "Exp", "LRN", "Log", "MVN",
     "PReLU", "Power", "ReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold")
)  # fmt: skip
"""Types whose tops match their bottoms pixel by pixel, as pycaffe's coord_map has them."""

PER_CHANNEL = frozenset(
    {
        "BN",
        "BatchNorm",
        "Bias",
        "ConvolutionDepthwise",
        "Dial",
        "GroupNorm",
        "MultiModalBatchNorm",
        "Normalize",
        "PReLU",
        "Scale",
    }
)
"""Types that keep the channels and have parameters or statistics for each (Layer.per_channel)."""

PARAMETRIZED = frozenset({
    "BN", "BatchNorm", "Bias", "ConvLSTM", "Convolution", "Convolution3D", "ConvolutionDepthwise", "DataAugmentation",
    "Deconvolution", "DepthwiseConvolution", "Dial", "Embed", "GroupNorm", "InnerProduct", "LSTM", "Lstm",
    "MultiModalBatchNorm", "Normalize", "PReLU", "Parameter", "Python", "RNN", "Scale",
})  # fmt: skip
"""Types that have parameters or statistics, at least with some options (Layer.blobs)."""

NO_IMAGES = frozenset({"ContinuationIndicator", "DummyData", "Parameter"})
"""Types that never have bottoms and bring no data: constants, the size of a crop, parameters."""
