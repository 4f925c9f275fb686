// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "config/config.h"
#include "config/environment.h"
#include "net/security.h"

namespace dt::launch {

/// What guards this process's connections, and who says so.
struct Credentials {
  net::Security security;
  /// Where the token came from: "environment DT_TOKEN", "the file /run/secrets/dt". Empty: there is
  /// none.
  std::string source;
  /// "auto", "none", "auth", "encrypt": security.mode as it was written.
  std::string wanted = "auto";
  /// The token is the user's own file (~/.config/dt/token): anything else goes before it.
  bool from_home = false;

  bool has_token() const { return security.token.has_value(); }
  /// Whether a token that somebody makes for this job is welcome: none was given.
  bool takes_token() const { return wanted != "none" && (!has_token() || from_home); }
  /// Uses `token`, which `from` has made or told.
  void take(net::Token token, const std::string& from);
};

/// What a job that is started here would use. The token comes from the file that
/// security.token_file names, the variable DT_TOKEN, or ~/.config/dt/token; the mode is auth where
/// there is one, unless security.mode says otherwise. CONFIG: a file that others could read, a
/// token that is too short.
///
/// `may_come`: a token may still be made or told, so none is no error yet though the mode wants
/// one.
Result<Credentials> find_credentials(const Config& config, const Environment& environment,
                                     bool may_come);
/// CONFIG where the mode wants a token and there is none.
Status check_credentials(const Credentials& credentials);

/// ~/.config/dt/token, or in XDG_CONFIG_HOME; empty where the user has no home.
std::string home_token_path(const Environment& environment);
/// The token in a file that only its user can read. CONFIG says what to mend; absent: no such file.
Result<std::optional<net::Token>> read_token_file(const std::string& path);
/// Makes the file, which only its user can read, all or nothing, with the folders above it. Without
/// `replace` an existing one is an error (CONFIG).
Status write_token_file(const std::string& path, const net::Token& token, bool replace);

}  // namespace dt::launch
