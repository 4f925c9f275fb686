// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/multihost/roster.h"
#include "collective/exchange.h"
#include "transport/tcp/mesh.h"

namespace dt::backend {

class HostBackend;

/// A communicator of ranks of several hosts: shared memory inside a host, TCP between hosts.
struct MultihostOptions {
  Roster roster;
  /// The communicator's ranks of this host, in order; made as a part (HostWorldOptions::part).
  std::shared_ptr<HostBackend> local;
  std::shared_ptr<tcp::Mesh> mesh;
  std::optional<collective::Way> way;  ///< of its exchanges; empty: by size. Equal on all ranks
  /// As HostWorldOptions::on_broken. `handed_over`, which any thread may call
  /// and which may outlive the backend: it is on its way, as far as this process has to do with
  /// that. Until then, for a short time, no operation is done.
  std::function<void(const std::string& communicator, const Status&,
                     std::function<void()> handed_over)>
      on_broken;
  /// For messages of peers: which operation this rank entered last.
  std::function<void(collective::Kind, int64_t sequence, const std::string& name)> note_last;
  /// Hears how long calls waited, and because of whom; null: nobody does.
  std::shared_ptr<record::Meter> meter;
};

/// Collective over the ranks of the roster.
Result<std::shared_ptr<Backend>> create_multihost(MultihostOptions options);

}  // namespace dt::backend
