// Package manager puts the controllers of a cluster's resources together and runs them:
// sandbox-controller, as something that a test can embed.
package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/internal/executor"
	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// leaderElectionID names the lease that the leader of several controllers holds.
const leaderElectionID = "sandbox-controller.sandbox.internal"

// leaseDuration is after how long without a renewal another controller leads. It, and what passes
// until the others have seen the last renewal and try again, are less than 10 s together. Renewals
// have a connection of their own, and in the chart a priority, so that they are in time.
const leaseDuration = 5 * time.Second

// Options say how the controller runs.
type Options struct {
	// Config reaches the API server; Load makes one.
	Config *rest.Config
	// Namespace is the only one that is looked at; empty means all of them.
	Namespace string
	// LeaderElection makes one of several controllers work, and the next one when it has exited.
	LeaderElection bool
	// LeaderElectionNamespace is where the lease is; empty means Namespace, or else the
	// controller's own, in a cluster.
	LeaderElectionNamespace string
	// Rights names the Role and the RoleBinding of the controller in Namespace, which outlast every
	// BatchSandbox and Pool when the namespace is deleted; empty means that nothing keeps them.
	// With the suffix -last it names the RoleBinding by which the controller may see to that.
	Rights string
	// LeaseDuration is how long the others wait for a leader that exited without releasing its
	// lease, at least 3 s; 0 means 5 s.
	LeaseDuration time.Duration
	// MetricsAddress and HealthAddress are where /metrics, and /healthz and /readyz are served; ""
	// or "0" means nowhere.
	MetricsAddress string
	HealthAddress  string
	// Logger takes the log; the zero value logs nothing.
	Logger logr.Logger
}

// Load reads a kubeconfig file; without a path, the variable KUBECONFIG, the service account of the
// pod or ~/.kube/config, whichever is first.
func Load(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if config, err := rest.InClusterConfig(); err == nil {
			return config, nil
		}
	}
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil,
			errors.New("no cluster: give --kubeconfig, set KUBECONFIG, or run inside of one")
	}
	return config, err
}

// Manager runs the controllers.
type Manager struct {
	ctrlmanager.Manager
	metrics  *prometheus.Registry
	listener net.Listener // of /metrics; nil for none
}

// New prepares the controllers and listens where metrics are served. Requests reach the API server
// only after Run.
func New(options Options) (*Manager, error) {
	config := rest.CopyConfig(options.Config)
	config.QPS = -1 // the API server limits its clients by itself
	config.UserAgent = rest.DefaultKubernetesUserAgent()

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	ours, err := labels.Parse(v1alpha1.LabelManagedBy + "=" + v1alpha1.ManagedBy)
	if err != nil {
		return nil, err
	}
	cacheOptions := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:            {Label: ours, Transform: batch.TrimPod},
			&v1alpha1.BatchSandbox{}: {Transform: batch.TrimBatch},
		},
	}
	electionNamespace := options.LeaderElectionNamespace
	if options.Namespace != "" {
		cacheOptions.DefaultNamespaces = map[string]cache.Config{options.Namespace: {}}
		if electionNamespace == "" {
			electionNamespace = options.Namespace
		}
	}
	lease := options.LeaseDuration
	if lease == 0 {
		lease = leaseDuration
	}
	renew, retry := lease*2/3, lease/10
	managerOptions := ctrlmanager.Options{
		Scheme: scheme, Cache: cacheOptions, Logger: options.Logger,
		// several managers may live in one process
		Controller:     ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
		LeaderElection: options.LeaderElection, LeaderElectionID: leaderElectionID,
		LeaderElectionNamespace:       electionNamespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &lease, RenewDeadline: &renew,
		RetryPeriod: &retry,
		// we serve them ourselves, with our own registry
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: orNone(options.HealthAddress),
	}
	var lock *pool.Lease
	if options.LeaderElection {
		if lock, err = newLease(config, electionNamespace, options.Namespace,
			renew); err != nil {
			return nil, fmt.Errorf("leader election: %w", err)
		}
		managerOptions.LeaderElectionResourceLockInterface = lock
	}
	mgr, err := ctrl.NewManager(config, managerOptions)
	if err != nil {
		return nil, fmt.Errorf("controller manager: %w", err)
	}
	m := &Manager{Manager: mgr, metrics: prometheus.NewRegistry()}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("cache", m.ready)); err != nil {
		return nil, err
	}
	enqueuer := new(batch.Enqueuer)
	keys := executor.NewKeys(mgr.GetAPIReader(), mgr.GetClient(), time.Now)
	tasks, err := m.tasks(lock, enqueuer, keys)
	if err != nil {
		return nil, err
	}
	pools, err := m.pools(options, lock, enqueuer, keys)
	if err != nil {
		return nil, fmt.Errorf("controller of Pools: %w", err)
	}
	claims, err := m.claims(lock, enqueuer, keys)
	if err != nil {
		return nil, err
	}
	if err := batch.Setup(mgr, batch.Options{
		Pools: pools, Tasks: tasks, Claims: claims, Equip: keys.Equip, Enqueuer: enqueuer,
		Metrics: batch.NewMetrics(m.metrics),
	}); err != nil {
		return nil, fmt.Errorf("controller of BatchSandboxes: %w", err)
	}
	if options.Rights != "" {
		if err := m.holdRights(options.Namespace, options.Rights); err != nil {
			return nil, err
		}
	}
	if address := orNone(options.MetricsAddress); address != "0" {
		if m.listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp",
			address); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		if err := mgr.Add(m.metricsServer()); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func orNone(address string) string {
	if address == "" {
		return "0"
	}
	return address
}

// Run works until the context ends, or until it has lost the lease, which is an error: the process
// must end then, because another one leads.
func (m *Manager) Run(ctx context.Context) error {
	if m.listener != nil {
		defer m.listener.Close()
	}
	return m.Start(ctx)
}

// MetricsAddress is where /metrics is served, empty for nowhere.
func (m *Manager) MetricsAddress() string {
	if m.listener == nil {
		return ""
	}
	return m.listener.Addr().String()
}

// ready says that the cache is filled; a controller that waits for the lease is ready, too.
func (m *Manager) ready(request *http.Request) error {
	ctx, cancel := context.WithTimeout(request.Context(), time.Second)
	defer cancel()
	if !m.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the cache is not filled yet")
	}
	return nil
}

// metricsServer serves our metrics and controller-runtime's, which has one registry for the whole
// process.
func (m *Manager) metricsServer() ctrlmanager.Runnable {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(prometheus.Gatherers{m.metrics, metrics.Registry},
			promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return &ctrlmanager.Server{Name: "metrics", Server: server, Listener: m.listener}
}

// SetLogger makes the libraries log here: they have one logger for the whole process. It is for
// programs, not for tests.
func SetLogger(logger logr.Logger) {
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}
