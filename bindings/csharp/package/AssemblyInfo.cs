// SPDX-License-Identifier: Apache-2.0
[assembly: System.Reflection.AssemblyVersion("@VERSION@")]
[assembly: System.Reflection.AssemblyFileVersion("@VERSION@")]
[assembly: System.Reflection.AssemblyTitle("Dt")]
#if DT_SPAN
[assembly: System.Runtime.Versioning.TargetFramework(".NETStandard,Version=v2.1")]
#else
[assembly: System.Runtime.Versioning.TargetFramework(".NETFramework,Version=v4.7.2")]
#endif
