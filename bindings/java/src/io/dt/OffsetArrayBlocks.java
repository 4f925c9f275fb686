// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.function.LongConsumer;

/** Blocking operations on arrays with a count and an offset for each rank. */
abstract class OffsetArrayBlocks extends IntegerArrayBlocks {
  OffsetArrayBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their array.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   */
  public void alltoallv(
      float[] send, long[] sendCounts, long[] sendOffsets, float[] recv, long[] recvCounts,
      long[] recvOffsets) {
    alltoallvArray(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, Dtype.F32);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(float[] send, float[] recv, long[] counts, long[] offsets, int root) {
    gathervArray(send, recv, counts, offsets, Dtype.F32, root);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their array.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(float[] send, long[] counts, long[] offsets, float[] recv, int root) {
    scattervArray(send, counts, offsets, recv, Dtype.F32, root);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   */
  public void allgatherv(float[] send, float[] recv, long[] counts, long[] offsets) {
    allgathervArray(send, recv, counts, offsets, Dtype.F32);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their array.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   */
  public void alltoallv(
      double[] send, long[] sendCounts, long[] sendOffsets, double[] recv, long[] recvCounts,
      long[] recvOffsets) {
    alltoallvArray(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, Dtype.F64);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(double[] send, double[] recv, long[] counts, long[] offsets, int root) {
    gathervArray(send, recv, counts, offsets, Dtype.F64, root);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their array.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(double[] send, long[] counts, long[] offsets, double[] recv, int root) {
    scattervArray(send, counts, offsets, recv, Dtype.F64, root);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   */
  public void allgatherv(double[] send, double[] recv, long[] counts, long[] offsets) {
    allgathervArray(send, recv, counts, offsets, Dtype.F64);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their array.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   */
  public void alltoallv(
      int[] send, long[] sendCounts, long[] sendOffsets, int[] recv, long[] recvCounts,
      long[] recvOffsets) {
    alltoallvArray(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, Dtype.I32);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(int[] send, int[] recv, long[] counts, long[] offsets, int root) {
    gathervArray(send, recv, counts, offsets, Dtype.I32, root);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their array.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(int[] send, long[] counts, long[] offsets, int[] recv, int root) {
    scattervArray(send, counts, offsets, recv, Dtype.I32, root);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   */
  public void allgatherv(int[] send, int[] recv, long[] counts, long[] offsets) {
    allgathervArray(send, recv, counts, offsets, Dtype.I32);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their array.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   */
  public void alltoallv(
      long[] send, long[] sendCounts, long[] sendOffsets, long[] recv, long[] recvCounts,
      long[] recvOffsets) {
    alltoallvArray(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, Dtype.I64);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(long[] send, long[] recv, long[] counts, long[] offsets, int root) {
    gathervArray(send, recv, counts, offsets, Dtype.I64, root);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their array.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(long[] send, long[] counts, long[] offsets, long[] recv, int root) {
    scattervArray(send, counts, offsets, recv, Dtype.I64, root);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   */
  public void allgatherv(long[] send, long[] recv, long[] counts, long[] offsets) {
    allgathervArray(send, recv, counts, offsets, Dtype.I64);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their array.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   * @param dtype of the elements
   */
  public void alltoallv(
      byte[] send, long[] sendCounts, long[] sendOffsets, byte[] recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype) {
    alltoallvArray(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, dtype);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void gatherv(
      byte[] send, byte[] recv, long[] counts, long[] offsets, Dtype dtype, int root) {
    gathervArray(send, recv, counts, offsets, dtype, root);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their array.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void scatterv(
      byte[] send, long[] counts, long[] offsets, byte[] recv, Dtype dtype, int root) {
    scattervArray(send, counts, offsets, recv, dtype, root);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their array.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   * @param dtype of the elements
   */
  public void allgatherv(byte[] send, byte[] recv, long[] counts, long[] offsets, Dtype dtype) {
    allgathervArray(send, recv, counts, offsets, dtype);
  }
}
