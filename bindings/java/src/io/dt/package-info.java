// SPDX-License-Identifier: Apache-2.0

/**
 * Distributed training for programs of the Java virtual machine: {@link io.dt.Job} joins a run,
 * {@link io.dt.Comm} has the collectives, {@link io.dt.Reducer} averages gradients while the
 * backward pass runs, {@link io.dt.Shard} has each rank update a part of the parameters, {@link
 * io.dt.Optimizer} does that update, {@link io.dt.Sampler} deals out the data.
 *
 * <p>Whatever goes wrong is a {@link io.dt.DtException}, by class. Everything that must be closed
 * is {@link java.lang.AutoCloseable}; what is forgotten goes with the garbage collector. Calls that
 * wait are not ended by an interrupt; {@link io.dt.Job#abort} ends them on all ranks.
 */
package io.dt;
