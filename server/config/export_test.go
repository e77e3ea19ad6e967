package config

import "reflect"

// DefaultDataDir is for a user that a test chooses.
var DefaultDataDir = defaultDataDir

// Keys lists every key of the file, in the order of the structs.
func Keys() []string {
	_, keys := knownKeys("", reflect.TypeFor[Config]())
	return keys
}

// ArchivesIn is archivesIn.
var ArchivesIn = archivesIn
