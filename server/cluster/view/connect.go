package view

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// CallTimeout bounds a call of the API server.
const CallTimeout = 15 * time.Second

// Requests to the API server are limited by the server itself (API priority and fairness); these
// limits of the client are above them.
const (
	queriesPerSecond = 1000
	burst            = 2000
)

// Connection is how the API server is reached.
type Connection struct {
	API client.WithWatch
	// Config and HTTP are what other clients of the same API server are made with, so that they
	// share its connections.
	Config    *rest.Config
	HTTP      *http.Client
	Namespace string // where sandboxes live
}

// Connect prepares a connection; it sends nothing. Kubeconfig is the path of a file; empty means
// from inside the cluster, as a pod's service account. An empty namespace means that of the
// kubeconfig's context, or that of the pod.
func Connect(kubeconfig, namespace string) (*Connection, error) {
	config, usual, err := load(kubeconfig)
	if err != nil {
		return nil, err
	}
	if namespace == "" {
		namespace = usual
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = queriesPerSecond, burst
	config.UserAgent = "sandbox-server"
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: httpClient})
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return &Connection{API: api, Config: config, HTTP: httpClient, Namespace: namespace}, nil
}

// Close closes idle connections.
func (c *Connection) Close() { utilnet.CloseIdleConnectionsFor(c.HTTP.Transport) }

// load reads how the API server is reached, and the namespace that goes with it.
func load(kubeconfig string) (*rest.Config, string, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{})
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("kubernetes.kubeconfig_path is not set, and the service does not run in a cluster: %w", err)
		}
		namespace, _, err := loader.Namespace()
		return config, namespace, err
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes.kubeconfig_path: %w", err)
	}
	namespace, _, err := loader.Namespace()
	return config, namespace, err
}

// tooLate is in the error of a request that the client library would repeat after the deadline. It
// wraps nothing that says so.
const tooLate = "would exceed context deadline"

// Explain turns an error of the API server that a client may read into a *lifecycle.Error; any
// other stays internal.
func Explain(err error) error {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case err == nil:
		return nil
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsInternalError(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		strings.Contains(err.Error(), tooLate), errors.As(err, &network) && !errors.As(err, &certificate):
		return fmt.Errorf("%w: %w", lifecycle.Unavailable("the cluster's API server"), err)
	}
	return fmt.Errorf("the cluster's API server: %w", err)
}
