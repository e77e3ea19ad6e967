package config_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func TestDebugAddressIsLoopbackOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:6060": true, "127.1.2.3:0": true, "[::1]:6060": true, "localhost:6060": true,
		"0.0.0.0:6060": false, ":6060": false, "[::]:6060": false, "192.0.2.1:6060": false, "example.com:6060": false,
		"127.0.0.1": false, "127.0.0.1:": false, "127.0.0.1:65536": false, "127.0.0.1:http": false, "6060": false,
	} {
		c := valid()
		c.Server.DebugAddress = address
		err := c.Validate()
		if ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "server.debug_address: must be a loopback address") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestAuditLogIsAnAbsolutePath(t *testing.T) {
	for path, ok := range map[string]bool{"": true, "/var/log/audit.log": true, "audit.log": false, "~/audit.log": false, "/var/log/": false} {
		c := valid()
		c.Server.AuditLog = path
		err := c.Validate()
		if ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "server.audit_log: must be the absolute path") {
			t.Errorf("%q: %v", path, err)
		}
	}
	c := load(t, minimal+"[server]\naudit_log = \"~/audit.log\"\n", home)
	if c.Server.AuditLog != home("HOME")+"/audit.log" {
		t.Errorf("~/audit.log is %q", c.Server.AuditLog)
	}
}

func TestSigningKeyIsAnAbsolutePath(t *testing.T) {
	for path, ok := range map[string]bool{"": true, "/etc/signing.key": true, "signing.key": false, "/etc/": false} {
		c := valid()
		c.Server.SigningKey = path
		err := c.Validate()
		if ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "server.signing_key: must be the absolute path") {
			t.Errorf("%q: %v", path, err)
		}
	}
	c := load(t, minimal+"[server]\nsigning_key = \"~/signing.key\"\n", home)
	if c.Server.SigningKey != home("HOME")+"/signing.key" {
		t.Errorf("~/signing.key is %q", c.Server.SigningKey)
	}
}

// valid returns a configuration that breaks no rule.
func valid() config.Config {
	c := config.Default(home)
	c.Runtime = config.Runtime{Type: config.RuntimeDocker, ExecdImage: "e"}
	return c
}
