// A Cadence server of one process: frontend, history and matching, with SQLite.
//
// Cadence's own program, cmd/server, is a module of its own that refers to its neighbours by paths, so no registry has it. This program does the
// part of it that one node needs. Its argument is a directory with a base.yaml in Cadence's own format. It makes the tables at its first start.
package main

import (
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/uber-go/tally"
	apiv1 "github.com/uber/cadence-idl/go/proto/api/v1"
	"go.uber.org/cadence/compatibility"

	"github.com/uber/cadence/common"
	"github.com/uber/cadence/common/archiver"
	"github.com/uber/cadence/common/archiver/provider"
	"github.com/uber/cadence/common/asyncworkflow/queue"
	"github.com/uber/cadence/common/clock"
	"github.com/uber/cadence/common/cluster"
	"github.com/uber/cadence/common/config"
	"github.com/uber/cadence/common/dynamicconfig"
	"github.com/uber/cadence/common/dynamicconfig/configstore"
	"github.com/uber/cadence/common/dynamicconfig/dynamicproperties"
	clog "github.com/uber/cadence/common/log"
	"github.com/uber/cadence/common/log/tag"
	"github.com/uber/cadence/common/membership"
	"github.com/uber/cadence/common/metrics"
	"github.com/uber/cadence/common/peerprovider/ringpopprovider"
	_ "github.com/uber/cadence/common/persistence/sql/sqlplugin/sqlite"
	"github.com/uber/cadence/common/resource"
	"github.com/uber/cadence/common/rpc"
	"github.com/uber/cadence/common/service"
	sqliteschema "github.com/uber/cadence/schema/sqlite"
	"github.com/uber/cadence/service/frontend"
	"github.com/uber/cadence/service/history"
	"github.com/uber/cadence/service/matching"
	"github.com/uber/cadence/tools/common/schema"
	"github.com/uber/cadence/tools/sql"
)

// How often a queue of tasks is read where no notice of a new task came. The defaults are minutes, for which a test does not wait.
const pollInterval = 2 * time.Second

func main() {
	var cfg config.Config
	check(config.Load("rig", os.Args[1], "", &cfg))
	check(cfg.ValidateAndFillDefaults())
	check(makeTables(cfg, cfg.Persistence.DefaultStore, "cadence"))
	check(makeTables(cfg, cfg.Persistence.VisibilityStore, "visibility"))
	zap, err := cfg.Log.NewZapLogger()
	check(err)
	logger := clog.NewLogger(zap)
	for _, name := range []string{service.History, service.Matching, service.Frontend} {
		params, err := newParams(name, cfg, logger)
		check(err)
		params.ZapLogger = zap
		go start(name, params)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop // SQLite keeps what was acknowledged
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func start(name string, params *resource.Params) {
	var daemon common.Daemon
	var err error
	switch name {
	case service.Frontend:
		daemon, err = frontend.NewService(params)
	case service.History:
		daemon, err = history.NewService(params)
	case service.Matching:
		daemon, err = matching.NewService(params)
	}
	check(err)
	daemon.Start()
}

// makeTables sets a store up, unless it is set up already.
func makeTables(cfg config.Config, store string, folder string) error {
	settings := cfg.Persistence.DataStores[store].SQL
	_, missing := os.Stat(settings.DatabaseName)
	if missing == nil {
		return nil
	}
	making := *settings
	making.DatabaseName = filepath.Join(filepath.Dir(settings.DatabaseName), "making-"+filepath.Base(settings.DatabaseName))
	if err := os.RemoveAll(making.DatabaseName); err != nil {
		return err
	}
	connection, err := sql.NewConnection(&making)
	if err != nil {
		return err
	}
	if err := schema.SetupFromConfig(&schema.SetupConfig{InitialVersion: "0.0"}, connection); err != nil {
		return fmt.Errorf("setup of %s: %w", store, err)
	}
	statements, err := fs.Sub(sqliteschema.SchemaFS, folder+"/versioned")
	if err != nil {
		return err
	}
	if err := schema.UpdateFromConfig(&schema.UpdateConfig{SchemaFS: statements}, connection); err != nil {
		return fmt.Errorf("update of %s: %w", store, err)
	}
	connection.Close()
	return os.Rename(making.DatabaseName, settings.DatabaseName)
}

func newParams(name string, cfg config.Config, root clog.Logger) (*resource.Params, error) {
	settings, err := cfg.GetServiceConfig(name)
	if err != nil {
		return nil, err
	}
	logger := root.WithTags(tag.Service(name))
	dynamic := dynamicconfig.NewInMemoryClient()
	for _, key := range []dynamicproperties.DurationKey{
		dynamicproperties.TimerProcessorMaxPollInterval, dynamicproperties.TransferProcessorMaxPollInterval,
	} {
		if err := dynamic.UpdateValue(key, pollInterval); err != nil {
			return nil, err
		}
	}
	group := cfg.ClusterGroupMetadata
	properties := dynamicconfig.NewCollection(dynamic, logger, dynamicproperties.ClusterNameFilter(group.CurrentClusterName))
	meter := metrics.NewClient(tally.NoopScope, service.GetMetricsServiceIdx(name, logger), metrics.MigrationConfig{})
	params := &resource.Params{
		Name:                     name,
		HostName:                 "localhost",
		Logger:                   logger,
		PersistenceConfig:        cfg.Persistence,
		DynamicConfig:            dynamic,
		OperationalConfigStore:   configstore.NewNopClient(),
		RPCConfig:                settings.RPC,
		MetricScope:              tally.NoopScope,
		MetricsClient:            meter,
		ClusterRedirectionPolicy: group.ClusterRedirectionPolicy,
		GetIsolationGroups:       func() []string { return nil },
		KafkaConfig:              cfg.Kafka,
		AuthorizationConfig:      cfg.Authorization,
	}
	params.PercentageOnboarded = membership.NewPercentageOnboarded(
		meter, properties.GetIntProperty(dynamicproperties.MatchingPercentageOnboardedToShardManager))
	params.PersistenceConfig.TransactionSizeLimit = properties.GetIntProperty(dynamicproperties.TransactionSizeLimit)
	params.PersistenceConfig.ErrorInjectionRate = properties.GetFloat64Property(dynamicproperties.PersistenceErrorInjectionRate)
	params.PProfInitializer = settings.PProf.NewInitializer(logger)
	params.ClusterMetadata = cluster.NewMetadata(
		*group, properties.GetBoolPropertyFilteredByDomain(dynamicproperties.UseNewInitialFailoverVersion), meter, logger)
	params.ArchivalMetadata = archiver.NewArchivalMetadata(properties, "", false, "", false, &cfg.DomainDefaults.Archival)
	params.ArchiverProvider = provider.NewArchiverProvider(nil, nil)
	if params.AsyncWorkflowQueueProvider, err = queue.NewAsyncQueueProvider(cfg.AsyncWorkflowQueues); err != nil {
		return nil, err
	}
	return params, connect(name, cfg, settings, params, properties)
}

// connect gives a service its calls to the others, and the ring in which they find one another.
func connect(name string, cfg config.Config, settings config.Service, params *resource.Params, properties *dynamicconfig.Collection) error {
	calls, err := rpc.NewParams(name, &cfg, properties, params.Logger, params.MetricsClient)
	if err != nil {
		return err
	}
	calls.OutboundsBuilder = rpc.CombineOutbounds(
		calls.OutboundsBuilder,
		rpc.NewCrossDCOutbounds(cfg.ClusterGroupMetadata.ClusterGroup, rpc.NewDNSPeerChooserFactory(time.Minute, params.Logger)))
	factory := rpc.NewFactory(params.Logger, calls)
	params.RPCFactory = factory
	ports := membership.PortMap{membership.PortGRPC: settings.RPC.GRPCPort, membership.PortTchannel: settings.RPC.Port}
	peers, err := ringpopprovider.New(name, &cfg.Ringpop, factory.GetTChannel(), ports, params.Logger)
	if err != nil {
		return err
	}
	params.HashRings = make(map[string]membership.SingleProvider)
	for _, other := range service.ListWithRing {
		scope := params.MetricsClient.Scope(metrics.HashringScope)
		params.HashRings[other] = membership.NewHashring(other, peers, clock.NewRealTimeSource(), params.Logger, scope)
	}
	params.MembershipResolver, err = membership.NewResolver(peers, params.MetricsClient, params.Logger, params.HashRings)
	if err != nil {
		return err
	}
	public := factory.GetDispatcher().ClientConfig(rpc.OutboundPublicClient)
	params.PublicClient = compatibility.NewThrift2ProtoAdapter(
		apiv1.NewDomainAPIYARPCClient(public), apiv1.NewWorkflowAPIYARPCClient(public),
		apiv1.NewWorkerAPIYARPCClient(public), apiv1.NewVisibilityAPIYARPCClient(public))
	return nil
}
