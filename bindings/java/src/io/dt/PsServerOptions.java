// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.file.Path;

/**
 * How a parameter server works.
 *
 * @param checkpoint a directory that is there, for this server's file; a server that finds it begins
 *     with it; null: a server that is lost takes its values with it
 * @param saveEveryMs between checkpoints, while pushes come; 0: at the end and by {@link Ps#save}
 *     only
 * @param absentMs how long the server waits for a lost worker once another has left
 * @param arrivalMs how long it waits for workers that have not come yet, and for one to come back
 *     where all were lost
 */
public record PsServerOptions(
    Path checkpoint, long saveEveryMs, long absentMs, long arrivalMs) {
  /** The defaults: no checkpoint, a minute, ten seconds, five minutes. */
  public static final PsServerOptions DEFAULT = new PsServerOptions(null);

  /**
   * With the default times.
   *
   * @param checkpoint a directory that is there, or null
   */
  public PsServerOptions(Path checkpoint) {
    this(checkpoint, 60_000, 10_000, 300_000);
  }
}
