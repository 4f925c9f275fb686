// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.util.function.LongConsumer;

/** Transfers between two ranks, on addresses. */
abstract class AddressTransfers extends Handle {
  final CommShared shared;

  AddressTransfers(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy);
    this.shared = shared;
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep.
   *
   * @param buffer what is sent
   * @param count elements
   * @param dtype of the elements
   * @param peer rank in the communicator, not this one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void send(
      long buffer, long count, Dtype dtype, int peer, long stream) {
    send(buffer, count, dtype, peer, stream, null);
  }

  final void send(
      long buffer, long count, Dtype dtype, int peer, long stream,
      Object keep) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          sendAsync(buffer, count, dtype, peer, stream, keep).pending(), stream);
      return;
    }
    try {
      Raw.send(number(), buffer, count, dtype.number(), peer, stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As send, without waiting. The memory must stay until the work is done.
   *
   * @param buffer what is sent
   * @param count elements
   * @param dtype of the elements
   * @param peer rank in the communicator, not this one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work sendAsync(
      long buffer, long count, Dtype dtype, int peer, long stream) {
    return sendAsync(buffer, count, dtype, peer, stream, null);
  }

  final Work sendAsync(
      long buffer, long count, Dtype dtype, int peer, long stream,
      Object keep) {
    try {
      Pending pending = shared.prepare(number(), keep, null);
      Work work = new Work(pending);
      pending.issued(
          Raw.send_async(number(), buffer, count, dtype.number(), peer, stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Receives what a peer sends.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep.
   *
   * @param buffer written
   * @param count elements
   * @param dtype of the elements
   * @param peer rank in the communicator, not this one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void recv(
      long buffer, long count, Dtype dtype, int peer, long stream) {
    recv(buffer, count, dtype, peer, stream, null);
  }

  final void recv(
      long buffer, long count, Dtype dtype, int peer, long stream,
      Object keep) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          recvAsync(buffer, count, dtype, peer, stream, keep).pending(), stream);
      return;
    }
    try {
      Raw.recv(number(), buffer, count, dtype.number(), peer, stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As recv, without waiting. The memory must stay until the work is done.
   *
   * @param buffer written
   * @param count elements
   * @param dtype of the elements
   * @param peer rank in the communicator, not this one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work recvAsync(
      long buffer, long count, Dtype dtype, int peer, long stream) {
    return recvAsync(buffer, count, dtype, peer, stream, null);
  }

  final Work recvAsync(
      long buffer, long count, Dtype dtype, int peer, long stream,
      Object keep) {
    try {
      Pending pending = shared.prepare(number(), keep, null);
      Work work = new Work(pending);
      pending.issued(
          Raw.recv_async(number(), buffer, count, dtype.number(), peer, stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }
}
