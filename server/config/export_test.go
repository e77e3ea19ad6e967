package config

import "reflect"

// DefaultDataDir lets a test choose the user.
var DefaultDataDir = defaultDataDir

// Keys lists every key of the file, in the order of the structs.
func Keys() []string {
	_, keys := knownKeys("", reflect.TypeFor[Config]())
	return keys
}
