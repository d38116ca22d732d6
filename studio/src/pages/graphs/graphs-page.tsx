export default function GraphsPage({ graph }: { graph: string | null }) { return <div className="page"><h1>{graph}</h1></div>; }
