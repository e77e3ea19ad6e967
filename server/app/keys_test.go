package app_test

import (
	"net/url"
	"testing"

	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
)

// TestIngressAddress: what clients get is part of a URL.
func TestIngressAddress(t *testing.T) {
	for address, want := range map[string]string{
		"2001:db8::1": "[2001:db8::1]", "[2001:db8::1]": "[2001:db8::1]", "[2001:db8::1]:8080": "[2001:db8::1]:8080",
		"192.0.2.1": "192.0.2.1", "gate.example:8080": "gate.example:8080", "*.gate.example": "*.gate.example",
	} {
		cfg := config.Ingress{Mode: config.IngressGateway}
		cfg.Gateway.Address = address
		got := app.Ingress(cfg).Address
		if parsed, err := url.Parse("http://" + got + "/ID/8000"); got != want || err != nil || parsed.Host != want {
			t.Errorf("%s: got %s (%v), want %s", address, got, err, want)
		}
	}
}
