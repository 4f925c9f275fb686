// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/facts.h"

namespace dt::launch {

/// What a complete MPI family may know from around it: Azure ML's address and nodes, else the first
/// node of the Slurm job that holds the launch. mpirun starts its daemons by srun on some nodes and
/// itself on others, so only the variables of the job are equal on all ranks.
Status read_mpi_surroundings(Variables& variables, Facts& facts);

/// The exchange that PMI's or PMIx's variables offer, if any.
void read_exchange(Variables& variables, Facts& facts);

/// A launcher serves this process PMIx.
bool offers_pmix(Variables& variables);

/// Open MPI was initialized in this process, without mpirun: its variables describe a job of one.
bool is_mpi_singleton(Variables& variables);

/// The address and node facts of an Azure ML MPI job. Error: bad_address.
Status read_azure(Variables& variables, Facts& facts);

/// The first node of the Slurm job, and a port that follows from its number. Error: bad_nodelist.
Status read_slurm_job(Variables& variables, Facts& facts);

/// 10000 + number mod 10000.
constexpr int32_t port_of_job(int64_t job_id) {
  return static_cast<int32_t>(10000 + job_id % 10000);
}

}  // namespace dt::launch
