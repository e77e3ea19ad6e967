package config

// RateLimit is how often one caller may call the service.
type RateLimit struct {
	// RequestsPerSecond is the average of this key, instead of that in [server.rate_limit], 0 to
	// 1000000; 0 is no limit.
	RequestsPerSecond int `toml:"requests_per_second"`
	// Burst is how many requests of this key may come at once after a rest, 0 to 1000000; 0 is as
	// many as requests_per_second.
	Burst int `toml:"burst"`
}

// RateLimits is the section [server.rate_limit].
type RateLimits struct {
	// RequestsPerSecond is the average of each key that has no limit of its own, 0 to 1000000; 0 is
	// no limit. With no key configured it holds for each remote address.
	RequestsPerSecond int `toml:"requests_per_second"`
	// Burst is how many requests of one key may come at once after a rest, 0 to 1000000; 0 is as
	// many as requests_per_second, without which it is refused.
	Burst int `toml:"burst"`
	// FailedAttemptsPerMinute is how many requests with a missing or wrong key one remote address
	// may send, 0 to 1000000; 0 is no limit, as it must be behind a reverse proxy.
	FailedAttemptsPerMinute int `toml:"failed_attempts_per_minute"`
}

// Default is the limit of a key that has none of its own.
func (r RateLimits) Default() RateLimit {
	return RateLimit{RequestsPerSecond: r.RequestsPerSecond, Burst: r.Burst}
}

func (r RateLimits) check(p *problems) {
	r.Default().check(p, "server.rate_limit")
	checkLimit(p, "server.rate_limit.failed_attempts_per_minute", r.FailedAttemptsPerMinute)
}

func (r RateLimit) check(p *problems, section string) {
	checkLimit(p, section+".requests_per_second", r.RequestsPerSecond)
	if r.Burst < 0 || r.Burst > maxLimit {
		p.add(section+".burst",
			"must be between 0 (as many as requests_per_second) and %d (got %d)", maxLimit, r.Burst)
	}
	if r.Burst > 0 && r.RequestsPerSecond == 0 {
		p.add(section+".burst",
			"needs requests_per_second in the same section: without it there is no limit")
	}
}
