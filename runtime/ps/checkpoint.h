// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/loop.h"
#include "ps/table.h"

namespace dt::ps {

// What a server keeps in a file, in the layout of safetensors: of each variable "v" the rows of
// this server, one behind the other, as "v"; what its optimizer keeps as "optimizer.first.v" and
// "optimizer.second.v"; how often each row was updated as "updates.v", whose highest bit says that
// the row was used (others are zeros in the file); and how it was made as "variable.v".

/// "DIRECTORY/server-1-of-4.safetensors"
std::string checkpoint_path(const std::string& directory, int32_t server, int32_t servers);

/// The tables of the file; none where there is no such file. INVALID_ARGUMENT for a file of another
/// layout, CONFIG where the directory has files of another number of servers.
Result<std::vector<std::unique_ptr<Table>>> load(const std::string& directory, int32_t server,
                                                 int32_t servers);

/// Writes tables to a file while they are in use. The owner's loop copies a piece, a second loop
/// writes it and then asks for the next one, so that no request waits for the disk. Each row is as
/// it was at some time of the writing.
///
/// Owner's loop; tables outlive it. `done` runs there once, unless the object goes before.
class Saving : public std::enable_shared_from_this<Saving> {
 public:
  /// @param files writes; outlives this
  static std::shared_ptr<Saving> begin(net::Loop* owner, net::Loop* files, std::string path,
                                       const std::vector<Table*>& tables,
                                       std::function<void(const Status&)> done);
  ~Saving();

 private:
  struct File;
  struct Part {
    const char* memory;
    int64_t at;
    int64_t bytes;
  };

  Saving(net::Loop* owner, net::Loop* files, std::function<void(const Status&)> done)
      : owner_(owner), files_(files), done_(std::move(done)) {}
  Status plan(std::string path, const std::vector<Table*>& tables);
  void go_on();
  void end(const Status& status);

  net::Loop* const owner_;
  net::Loop* const files_;
  std::function<void(const Status&)> done_;
  std::vector<std::string> made_;  ///< memory of parts
  std::vector<Part> parts_;
  size_t next_ = 0;     ///< of parts_
  int64_t copied_ = 0;  ///< bytes of it
  std::shared_ptr<File> file_;
};

}  // namespace dt::ps
