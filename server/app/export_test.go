package app

// What the tests look at from outside.
var (
	Addresses      = addresses
	SeccompProfile = seccompProfile
	APIKeys        = apiKeys
	Limits         = limits
	HostLoad       = hostLoad
)
