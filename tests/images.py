# SPDX-License-Identifier: Apache-2.0
"""The first images of Fashion-MNIST. To unpack all of them takes a rank as long as a short training."""
import gzip
import os
import struct

FILES = {"train-images-idx3-ubyte.gz": 784, "train-labels-idx1-ubyte.gz": 1, "t10k-images-idx3-ubyte.gz": 784,
         "t10k-labels-idx1-ubyte.gz": 1}  # and the bytes of an item


def write_part(source, folder, train, test=300):
    """Makes the folder, with so many images for training and for tests, and gives it back."""
    os.mkdir(folder)
    for name, item_bytes in FILES.items():
        count = train if name.startswith("train") else test
        head = 16 if item_bytes > 1 else 8
        with gzip.open(os.path.join(source, name)) as file:
            data = file.read(head + count * item_bytes)
        with gzip.open(os.path.join(folder, name), "wb", compresslevel=1) as file:
            file.write(data[:4] + struct.pack(">I", count) + data[8:])
    return folder
