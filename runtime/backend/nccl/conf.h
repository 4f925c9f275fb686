// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/nccl/settings.h"

// The files that NCCL reads by itself, before its variables: the first of NCCL_CONF_FILE or
// ~/.nccl.conf, then /etc/nccl.conf. What the environment has already stays; what they set goes
// before the fields of ncclConfig_t, as any variable does (NCCL's misc/param.cc).
namespace dt::nccl {

struct ConfLine {
  std::string name;   ///< "NCCL_ALGO"
  std::string value;  ///< "Ring"
  std::string file;   ///< "/etc/nccl.conf"
  int number = 0;     ///< of the line
};

/// Where the files without a name in the environment lie.
struct ConfPlaces {
  std::string home;  ///< the user's, of the password file: NCCL does not look at HOME
  std::string system = "/etc/nccl.conf";
};
ConfPlaces conf_places();

/// The lines that count: of a variable in two files, the first. A file that cannot be read has
/// none, as with NCCL.
std::vector<ConfLine> read_conf(const Environment& environment, const ConfPlaces& places);

/// Whether NCCL takes the line: nobody has set its variable before.
bool counts(const ConfLine& line, const Environment& environment);

/// "/etc/nccl.conf:3"
std::string where(const ConfLine& line);

/// Lines at odds with the settings or the environment, and lines with variables that dt does not
/// get along with. The fatal ones first.
std::vector<Obstacle> conf_obstacles(const Settings& settings, const Environment& environment,
                                     const std::vector<ConfLine>& lines);
/// The same for one warning; empty: none.
std::string conf_text(const Settings& settings, const Environment& environment,
                      const std::vector<ConfLine>& lines);

/// What dt run tells its ranks of NCCL's RAS service, which has one port for all jobs of a host: of
/// two jobs one could not serve it, or would be asked for the other. `port`: one that is reserved
/// for this job; 0: none could be, so the service stays off. Empty: the user has decided.
std::vector<Variable> ras_variables(const Settings& settings, const Environment& environment,
                                    const std::vector<ConfLine>& lines, int port);

}  // namespace dt::nccl
