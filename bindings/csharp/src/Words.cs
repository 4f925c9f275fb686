// SPDX-License-Identifier: Apache-2.0
using System.Collections.Generic;
using System.Text.RegularExpressions;

namespace Dt
{
    /// What libdt says to a program that calls it wrongly, with the names of C#.
    internal static class Words
    {
        static readonly Regex terms = new Regex(@"""[^""]*""|\bdt_[a-z_]+|\b(options|collective|spec|state)->[a-z_]*|\bNULL\b");
        static readonly Dictionary<string, string> known = new Dictionary<string, string>
        {
            { "dt_init", "Job" }, { "dt_finalize", "Leave" }, { "dt_comm_world", "World" },
            { "dt_comm_create", "CreateComm" },
            { "dt_rank_info", "Place" }, { "dt_job_stats", "Statistics" },
            { "dt_job_kind_stats", "Statistics" }, { "dt_job_peer_stats", "PeerStatistics" },
            { "dt_mem_alloc", "Allocate" }, { "dt_mem_free", "Dispose" },
            { "dt_work_fd", "WorkFd" }, { "dt_work_error_info", "Error" }, { "dt_work_share", "SetHook" },
            { "dt_reducer_grad", "Gradient" }, { "dt_reducer_stats", "Statistics" },
            { "dt_sampler_create", "Sampler" }, { "dt_reducer_create", "Reducer" },
            { "dt_config_create", "Config" }, { "dt_store_serve", "StoreServer" }, { "dt_store_server_port", "Port" },
            { "dt_shard_create", "Shard" }, { "dt_shard_param", "Parameter" },
            { "dt_shard_full_grad", "FullGradient" },
            { "dt_optimizer_adamw", "AdamW" },
            { "dt_named_create", "Named" }, { "dt_named_stats", "Statistics" }, { "dt_named_submit", "Under" },
            { "dt_named_submit_group", "Group" }, { "dt_outer_create", "Outer" },
            { "dt_ps_connect", "Ps" }, { "dt_ps_serve", "PsServer" }, { "dt_ps_stats", "Statistics" },
            { "dt_ps_server_port", "Port" }, { "dt_ps_server_stats", "Statistics" }, { "dt_ps_server_wait", "Wait" },
            { "dt_ps_fd", "WorkFd" },
            { "dt_dtype", "Dtype" }, { "dt_reduce_op", "ReduceOp" }
        };
        // The object that a method belongs to is not said: the message is about a call of it.
        static readonly string[] objects =
            { "comm", "config", "job", "named", "optimizer", "outer", "ps", "reducer", "sampler", "shard", "work" };

        /// What the program said when it aborted stays as it is.
        internal static string InCSharp(Status status, string message)
        {
            int end = status == Status.Aborted
                ? message.IndexOf(" aborted the job: ", System.StringComparison.Ordinal) : -1;
            string ours = end < 0 ? message : message.Substring(0, end);
            return terms.Replace(ours, match => Name(match.Value)) + message.Substring(ours.Length);
        }

        static string Name(string term)
        {
            string name;
            if (term[0] == '"') return term; // a name or a path
            if (known.TryGetValue(term, out name)) return name;
            if (term == "NULL") return "null";
            if (term.EndsWith("_destroy", System.StringComparison.Ordinal)) return "Dispose";
            int arrow = term.IndexOf("->");
            if (arrow >= 0)
            {
                return Regex.Replace(term.Substring(arrow + 2), "_(.)", part => part.Groups[1].Value.ToUpperInvariant());
            }
            string plain = term.Replace("_", "");
            foreach (OperationKind kind in System.Enum.GetValues(typeof(OperationKind)))
            {
                if (plain == "dt" + kind.ToString().ToLowerInvariant()) return Call.NameOf(kind);
            }
            List<string> parts = new List<string>(term.Split('_'));
            parts.RemoveAt(0);
            if (parts.Count > 1 && System.Array.IndexOf(objects, parts[0]) >= 0) parts.RemoveAt(0);
            name = "";
            foreach (string part in parts)
            {
                if (part.Length > 0) name += char.ToUpperInvariant(part[0]) + part.Substring(1);
            }
            return name;
        }
    }
}
