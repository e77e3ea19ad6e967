package api

import "runtime/debug"

// Build returns the version of the running program, as the Go tool stamped it.
func Build() Version {
	build := Version{Version: "devel"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build
	}
	if version := info.Main.Version; version != "" && version != "(devel)" {
		build.Version = version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			build.Commit = setting.Value
		}
	}
	return build
}
