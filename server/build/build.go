// Package build has the version of the running program, as the Go tool stamped it.
package build

import "runtime/debug"

// Version returns the version of the module, and "devel" for a build that has none.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" &&
		info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Commit returns the revision of the repository that the program was built from; "" when the build
// has none (-buildvcs=false).
func Commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return ""
}
