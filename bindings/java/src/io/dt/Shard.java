// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Parameters in dt's memory, of which each rank updates its own pieces (ZeRO). Each step: {@link
 * #gather} before the forward pass uses a unit, {@code ready} of {@link #reducer()} for each gradient
 * and its {@code finish}, then {@link Optimizer#step}. An optimizer of your own updates each {@link
 * #piece} and then calls {@link #updated()}. In stage 3 the backward pass gathers, too, and both
 * {@link #release} what they have used.
 *
 * <p>Parameters start as zeros; list them as the forward pass comes to them. Those of a unit and
 * type lie in buckets; each bucket is cut into equal parts, or, where a parameter has a granule, at
 * the granules nearest to them, which costs a reduction for each rank instead of one.
 *
 * <p>Over GPUs the memory is the GPU's, and has addresses only. Calls then take the CUDA stream that
 * uses it, which waits instead of the call; otherwise it is stream 0.
 *
 * <p>One thread at a time, which is that of the reducer's {@code finish}.
 */
public final class Shard extends Handle {
  final List<Param> params;
  private final Reducer reducer;
  private final int ranks;

  /**
   * Lays parameters out, and checks on all ranks that the model is the same. Collective.
   *
   * @param comm whose ranks
   * @param params 1 to 1048576
   */
  public Shard(Comm comm, List<Param> params) {
    this(comm, params, ShardOptions.DEFAULT);
  }

  /**
   * Lays parameters out with options.
   *
   * @param comm whose ranks
   * @param params 1 to 1048576
   * @param options of the shard
   */
  public Shard(Comm comm, List<Param> params, ShardOptions options) {
    super(create(comm, params, options), Raw::shard_destroy);
    this.params = List.copyOf(params);
    ranks = comm.size();
    reducer = new Reducer(call(Raw::shard_reducer), this.params, true);
  }

  private static long create(Comm comm, List<Param> params, ShardOptions options) {
    Packing packing = new Packing();
    Checks.notNull("Shard", "params", params);
    Checks.notNull("Shard", "options", options).pack("Shard", packing, params);
    Param.pack("Shard", packing, params);
    return Checks.notNull("Shard", "comm", comm)
        .call(number -> Raw.shard_create(number, packing.take(), options.offload()));
  }

  /**
   * The reducer of the gradients, which is closed with this. Gradients given to {@code ready} stay
   * as they are: results are in {@link Piece#gradient}. From stage 1 on its {@code clipNorm}
   * is collective.
   *
   * @return always the same
   */
  public Reducer reducer() {
    return reducer;
  }

  /**
   * Where a parameter lies, whole, in native order. After {@link #updated()} its values are valid
   * from {@link #gather} of its unit, in stage 3 to {@link #release} or {@link #updated()}. It keeps
   * a closed shard's memory.
   *
   * @param index of the parameter
   * @return a buffer with its own position and limit
   */
  public ByteBuffer parameter(int index) {
    long address = parameterAddress(index);
    return buffer("Shard.parameter", address, params.get(index).bytes());
  }

  /**
   * As {@link #parameter}, for libraries that take addresses.
   *
   * @param index of the parameter
   * @return aligned to 256 bytes; valid until this is closed
   */
  public long parameterAddress(int index) {
    return call(number -> Raw.shard_param(number, index));
  }

  /**
   * Copies a parameter in, whole: its first values, or those of a checkpoint. On this rank only; an
   * {@link #updated()} behind it gives all ranks what the pieces' owners have.
   *
   * @param index of the parameter
   * @param values as many elements as the parameter; may be an array
   */
  public void set(int index, Tensor values) {
    set(index, values, 0);
  }

  /**
   * As {@link #set(int, Tensor)} over GPUs.
   *
   * @param index of the parameter
   * @param values the host's, or the GPU's; then to be kept until the stream has passed this call
   * @param stream CUDA stream that copies; ignored on a host communicator
   */
  public void set(int index, Tensor values, long stream) {
    Param param = Param.at("Shard.set", params, index);
    param.checkFits("Shard.set", "values", Checks.notNull("Shard.set", "values", values));
    Tensor memory = values.direct("Shard.set");
    memory.use(() -> run(number -> Raw.shard_set(number, index, memory.place(), stream)));
  }

  /**
   * What this rank updates of a parameter. With stage 0 that is all of it.
   *
   * @param index of the parameter
   * @return where it lies
   */
  public Piece piece(int index) {
    ByteBuffer packed = Packing.read(call(number -> Raw.shard_piece(number, index, 0)));
    long offset = packed.getLong();
    long count = packed.getLong();
    long param = packed.getLong();
    long gradient = packed.getLong();
    long bytes = count * params.get(index).type().bytes();
    return new Piece(
        offset,
        count,
        buffer("Shard.piece", param, bytes),
        bytes > 0 && gradient == 0 ? null : buffer("Shard.piece", gradient, bytes));
  }

  /**
   * A part of a parameter.
   *
   * @param offset elements from the parameter's start
   * @param count elements; 0: none
   */
  public record Part(long offset, long count) {}

  /**
   * Which part of a parameter each rank updates; the same on all ranks.
   *
   * @param index of the parameter
   * @return one for each rank of the communicator
   */
  public List<Part> plan(int index) {
    ByteBuffer packed = Packing.read(call(number -> Raw.shard_plan(number, index, ranks)));
    return IntStream.range(0, ranks).mapToObj(rank -> new Part(packed.getLong(), packed.getLong())).toList();
  }

  /**
   * Collects a whole gradient of the last step from the ranks' pieces, to look at or to check it.
   * Collective.
   *
   * @param index of the parameter, the same on all ranks
   * @param out as many elements as the parameter; may be an array
   */
  public void fullGradient(int index, Tensor out) {
    fullGradient(index, out, 0);
  }

  /**
   * As {@link #fullGradient(int, Tensor)} over GPUs.
   *
   * @param index of the parameter, the same on all ranks
   * @param out of the GPU, as many elements as the parameter
   * @param stream CUDA stream that will use it; ignored on a host communicator
   */
  public void fullGradient(int index, Tensor out, long stream) {
    String method = "Shard.fullGradient";
    Param param = Param.at(method, params, index);
    param.checkFits(method, "out", Checks.notNull(method, "out", out));
    out.checkWritable(method, "out");
    Tensor memory = out.direct(method);
    memory.use(() -> {
      run(number -> Raw.shard_full_grad(number, index, memory.place(), stream));
      if (out.onHeap()) out.copyOut(memory.place());
    });
  }

  /**
   * As {@link #piece}, for libraries that take addresses.
   *
   * @param index of the parameter
   * @param stream CUDA stream that will write the piece; ignored on a host communicator
   * @return where it lies; the addresses are valid until this is closed
   */
  public PieceAddresses pieceAddresses(int index, long stream) {
    ByteBuffer packed = Packing.read(call(number -> Raw.shard_piece(number, index, stream)));
    return new PieceAddresses(
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong());
  }

  private ByteBuffer buffer(String method, long address, long bytes) {
    if (bytes == 0) return ByteBuffer.allocateDirect(0).order(ByteOrder.nativeOrder());
    return Memory.behind(this, method, address, bytes, () -> {});
  }

  /**
   * Says that this rank has updated its pieces: begins to send them to all ranks, and to receive
   * theirs, while the caller goes on. Collective. A parameter may not be written from here to
   * {@link #gather} of its unit or {@link #piece} of itself.
   */
  public void updated() {
    updated(0);
  }

  /**
   * As {@link #updated()} over GPUs.
   *
   * @param stream CUDA stream that wrote the pieces; ignored on a host communicator
   */
  public void updated(long stream) {
    run(number -> Raw.shard_updated(number, stream));
  }

  /**
   * Waits until the parameters of a unit are those of {@link #updated()} on all ranks: to be called
   * before the forward pass uses them. A second call waits for nothing. In stage 3 collective.
   *
   * @param unit one of {@link ShardOptions#withUnits}
   */
  public void gather(int unit) {
    gather(unit, 0);
  }

  /**
   * As {@link #gather(int)} over GPUs.
   *
   * @param unit one of {@link ShardOptions#withUnits}
   * @param stream CUDA stream that will use them, and waits; ignored on a host communicator
   */
  public void gather(int unit, long stream) {
    run(number -> Raw.shard_gather(number, unit, stream));
  }

  /**
   * In stage 3 says that a unit's parameters are not used until the next {@link #gather} of it:
   * their memory serves other units.
   *
   * @param unit one of {@link ShardOptions#withUnits}
   */
  public void release(int unit) {
    release(unit, 0);
  }

  /**
   * As {@link #release(int)} over GPUs.
   *
   * @param unit one of {@link ShardOptions#withUnits}
   * @param stream CUDA stream that used them; ignored on a host communicator
   */
  public void release(int unit, long stream) {
    run(number -> Raw.shard_release(number, unit, stream));
  }

  /**
   * Writes the parameters to one file, in the layout of safetensors. Collective.
   *
   * @param path on a file system of all ranks; replaced once all is on the disk
   */
  public void save(Path path) {
    String file = Checks.notNull("Shard.save", "path", path).toString();
    run(number -> Raw.shard_save(number, 0, file));
  }

  /**
   * As {@link #save(Path)}, with the state of an optimizer.
   *
   * @param path on a file system of all ranks; replaced once all is on the disk
   * @param optimizer of this shard
   */
  public void save(Path path, Optimizer optimizer) {
    String file = Checks.notNull("Shard.save", "path", path).toString();
    Checks.notNull("Shard.save", "optimizer", optimizer)
        .run(state -> run(number -> Raw.shard_save(number, state, file)));
  }

  /**
   * Reads what {@link #save} wrote, with any number of ranks and any options, or another file of
   * safetensors with tensors of these names. Parameters are whole from {@link #gather} of their
   * unit. Collective.
   *
   * @param path the same file on all ranks
   */
  public void load(Path path) {
    String file = Checks.notNull("Shard.load", "path", path).toString();
    run(number -> Raw.shard_load(number, 0, file));
  }

  /**
   * As {@link #load(Path)}, with the state of an optimizer.
   *
   * @param path the same file on all ranks
   * @param optimizer of this shard, and of the kind that was saved
   */
  public void load(Path path, Optimizer optimizer) {
    String file = Checks.notNull("Shard.load", "path", path).toString();
    Checks.notNull("Shard.load", "optimizer", optimizer)
        .run(state -> run(number -> Raw.shard_load(number, state, file)));
  }

  @Override
  public void close() {
    reducer.close();
    super.close();
  }
}
