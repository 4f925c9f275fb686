// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A full bucket of a {@link Reducer}, for a {@link BucketHook}.
 *
 * @param index in launch order
 * @param last whether it is the step's last
 * @param params indices of its parameters, in the order of memory
 * @param data gradients at multiples of 256 bytes, and padding of any value, or those of {@link
 *     ReducerOptions#withGradients} one behind the other; for the call alone
 * @param stream on GPUs the CUDA stream in whose order the gradients are complete, else 0
 */
public record Bucket(int index, boolean last, List<Integer> params, Tensor data, long stream) {
  static Bucket at(long address) {
    ByteBuffer packed = Packing.read(Raw.bucket_fields(address));
    int index = (int) packed.getLong();
    boolean last = packed.getLong() != 0;
    long data = packed.getLong();
    long count = packed.getLong();
    DataType type = DataType.values()[(int) packed.getLong()];
    long stream = packed.getLong();
    List<Integer> params = new ArrayList<>();
    while (packed.hasRemaining()) params.add((int) packed.getLong());
    return new Bucket(index, last, List.copyOf(params), Tensor.at(data, count, type, null), stream);
  }
}
