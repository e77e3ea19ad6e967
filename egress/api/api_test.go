package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"sandbox.internal/egress/api"
	"sandbox.internal/openapi/document"
	"sandbox.internal/openapi/serve/servetest"
)

// The enforcer is never asked: there is none.
func TestEveryOperationRefusesUnknownParameters(t *testing.T) {
	handler, err := api.New(api.Options{Token: "open sesame"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	document, err := document.LoadEgress()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationRefusesUnknownParameters(t, document, server.URL,
		http.Header{"X-Egress-Access-Token": {"open sesame"}})
}
