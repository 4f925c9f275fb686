// SPDX-License-Identifier: Apache-2.0
[assembly: System.Reflection.AssemblyVersion("@VERSION@")]
[assembly: System.Reflection.AssemblyFileVersion("@VERSION@")]
[assembly: System.Reflection.AssemblyTitle("Dt")]
