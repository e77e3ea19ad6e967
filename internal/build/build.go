// Package build has the version of the running program: what `make build` has linked into it, else
// what the Go tool stamped.
package build

import "runtime/debug"

// `make build` sets them with -ldflags -X, from scripts/version.sh.
var version, commit string

// Version returns the version of the module, and "devel" for a build that has none.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" &&
		info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Commit returns the revision of the repository that the program was built from; "" when the build
// has none (-buildvcs=false).
func Commit() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return ""
}
