// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dt::cli::bench {

/// What `dt bench --help` says behind the options.
inline constexpr char kHelp[] =
    R"(COLLECTIVE is allreduce, allgather, reduce_scatter, broadcast, reduce, alltoall, gather,
scatter, barrier, alltoallv, allgatherv (blocks half and one and a half times the average in turn),
sendrecv (each rank sends to the next one and receives from the one before), pingpong (the same
one rank after the other; the time of one message), a list of them, or all. Sizes are bytes; K, M
and G mean 2^10, 2^20 and 2^30; where each rank has its part, or sends one to each rank, they are
the total of one buffer. A barrier has none.

dt bench starts its ranks itself on this machine; started as a rank (by dt run, srun, mpirun,
...) it measures within that job.

Method: results are verified first; then, per size, warm-up and --rounds rounds, of which the
median counts. From 64 KiB on every rank rewrites its buffer and passes a barrier before each
timed operation; below, operations run back to back. Times are averaged over the ranks.
Columns are those of nccl-tests, GB is 10^9 bytes.

--plot draws dt, the rivals, and as this host's limit a copy of each size that all ranks of this
host make at the same time without waiting for each other (not with --device cuda).

--device cuda measures GPU memory over NCCL, or through the host where ranks share a GPU and
backend.shared_gpu is host. As nccl-tests, it runs operations back to back at every size; the
times are those of CUDA's events.

COLLECTIVE, -n and --dtype take lists (-n 2,4,8 --dtype f32,bf16, or --dtype all): every
combination is measured.

Each rank that dt bench starts has cores of its own while there are enough of them, as have the
rivals' ranks; --bind none leaves all of them to the kernel.

--compare compiles small programs of the rivals and runs them in turn with dt: in each round
every program does one short run over all sizes. openmpi-tuned is Open MPI with glibc's malloc
set to keep large blocks, which is its fairest setting; gloo-tuned takes the fastest of gloo's
algorithms for each size; torch is torch.distributed over gloo. A rival that is not installed is
an error; --compare all measures those that are and names the others.

--tune takes no COLLECTIVE: it measures an allreduce (for mapped_bytes a sendrecv) beside itself
with other values of [host] in dt.toml, prints those that are faster by more than the present
value differs from itself, and measures what it found once more as a whole. --tune-write changes
these lines of a dt.toml and leaves the others as they are.)";

}  // namespace dt::cli::bench
