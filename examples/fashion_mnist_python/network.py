# SPDX-License-Identifier: Apache-2.0
"""The network of examples/fashion_mnist in NumPy: conv 3x3 -> ReLU -> pool, twice, -> dense -> ReLU ->
dense -> softmax. Parameters, their order, and first values are the same, bit for bit."""

import numpy

CLASSES = 10
SHAPES = {  # in the order of the forward pass; weights are [inputs][outputs]
    "conv1.weight": (9, 16), "conv1.bias": (16,), "conv2.weight": (144, 32), "conv2.bias": (32,),
    "dense1.weight": (1568, 128), "dense1.bias": (128,), "dense2.weight": (128, CLASSES),
    "dense2.bias": (CLASSES,)}
NAMES = list(SHAPES)
# The last one is small, so that the first losses are those of a guess.
FAN_IN = {"conv1.weight": 9, "conv2.weight": 144, "dense1.weight": 1568, "dense2.weight": 100 * 128}
PIXEL_MEAN, PIXEL_DEVIATION = numpy.float32(0.2860), numpy.float32(0.3530)


def splitmix64(seed, first, count):
    """Numbers [first, first + count) of the generator, in [-1, 1): Steele, Lea and Flood, OOPSLA 2014."""
    z = numpy.arange(first + 1, first + count + 1, dtype="u8") * numpy.uint64(0x9E3779B97F4A7C15)
    z += numpy.uint64(seed % 2**64)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    z ^= z >> numpy.uint64(31)
    return ((z >> numpy.uint64(40)).astype("i4") - (1 << 23)).astype("f4") * numpy.float32(2**-23)


def initial_parameters(seed):
    """He initialisation, uniform: equal bits on every rank."""
    parameters = [numpy.zeros(shape, "f4") for shape in SHAPES.values()]
    used = 0
    for name, fan_in in FAN_IN.items():
        values = parameters[NAMES.index(name)]
        bound = numpy.sqrt(numpy.float32(6) / numpy.float32(fan_in))
        values[:] = (bound * splitmix64(seed, used, values.size)).reshape(values.shape)
        used += values.size
    return parameters


def patches_of(images):
    """[image][y][x][channel], with a border of zeros, as rows of 3 x 3 patches."""
    windows = numpy.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 9 * images.shape[3])


def convolve(images, weight, bias):
    """Convolution, the maximum of each 2 x 2, bias, ReLU; and which of the four won."""
    count, side, channels = len(images), images.shape[1] - 2, weight.shape[1]
    squares = (patches_of(images) @ weight).reshape(count, side // 2, 2, side // 2, 2, channels)
    squares = squares.transpose(0, 1, 3, 2, 4, 5).reshape(count, side // 2, side // 2, 4, channels)
    winner = squares.argmax(axis=3)[:, :, :, None]
    pooled = numpy.take_along_axis(squares, winner, axis=3)[:, :, :, 0] + bias
    return numpy.maximum(pooled, numpy.float32(0)), winner


def convolve_back(gradient, output, winner, images):
    """Gradients of the weight and of the bias, and the one before the maximum."""
    gradient = gradient * (output > 0)
    count, half, _, channels = gradient.shape
    squares = numpy.zeros((count, half, half, 4, channels), "f4")
    numpy.put_along_axis(squares, winner, gradient[:, :, :, None], axis=3)
    squares = squares.reshape(count, half, half, 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    flat = squares.reshape(-1, channels)
    return patches_of(images).T @ flat, gradient.sum(axis=(0, 1, 2)), flat


def bordered(images):
    return numpy.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))


def forward(parameters, pixels, labels, passes=1):
    """(sum of the losses in nats, correct ones, what backward() needs) of one of the passes of a step"""
    weight1, bias1, weight2, bias2, weight3, bias3, weight4, bias4 = parameters
    images = (pixels.astype("f4") * numpy.float32(1 / 255) - PIXEL_MEAN) * (1 / PIXEL_DEVIATION)
    images = bordered(images[:, :, :, None])
    out1, winner1 = convolve(images, weight1, bias1)
    inner = bordered(out1)
    out2, winner2 = convolve(inner, weight2, bias2)
    features = out2.reshape(len(pixels), -1)
    hidden = numpy.maximum(features @ weight3 + bias3, numpy.float32(0))
    logits = hidden @ weight4 + bias4
    shifted = (logits - logits.max(axis=1, keepdims=True)).astype("f8")
    exponentials = numpy.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = numpy.arange(len(pixels))
    loss = (numpy.log(sums[:, 0]) - shifted[rows, labels]).sum()
    correct = (logits.argmax(axis=1) == labels).sum()
    slope = exponentials / sums
    slope[rows, labels] -= 1
    slope = slope.astype("f4") * numpy.float32(1 / (len(pixels) * passes))
    return float(loss), int(correct), (images, out1, winner1, inner, out2, winner2, features, hidden, slope)


def backward(parameters, kept, ready):
    """Gives ready(name, gradient) each gradient of the mean loss as soon as it is known."""
    images, out1, winner1, inner, out2, winner2, features, hidden, slope = kept
    weight2, weight3, weight4 = parameters[2], parameters[4], parameters[6]
    ready("dense2.bias", slope.sum(axis=0))
    ready("dense2.weight", hidden.T @ slope)
    slope = (slope @ weight4.T) * (hidden > 0)
    ready("dense1.bias", slope.sum(axis=0))
    ready("dense1.weight", features.T @ slope)
    slope = (slope @ weight3.T).reshape(out2.shape)
    weight, bias, flat = convolve_back(slope, out2, winner2, inner)
    ready("conv2.bias", bias)
    ready("conv2.weight", weight)
    spread = (flat @ weight2.T).reshape(len(images), 14, 14, 3, 3, 16)
    padded = numpy.zeros_like(inner)
    for y in range(3):
        for x in range(3):
            padded[:, y:y + 14, x:x + 14] += spread[:, :, :, y, x]
    weight, bias, _ = convolve_back(padded[:, 1:-1, 1:-1], out1, winner1, images)
    ready("conv1.bias", bias)
    ready("conv1.weight", weight)
